# The operating-system layer where a registry can be reached. Where not, debootstrap makes the same (harness/node_images).
FROM debian:bookworm-slim
ARG PACKAGES
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ${PACKAGES} \
 && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
