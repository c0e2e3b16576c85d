"""Opening an SSH connection: the host proves who it is, then we do.

Nothing here prompts. A host whose key is not in known_hosts, or is another one there, is an error before anything of
ours is sent; so is a key of ours that is protected by a passphrase and not held by an agent.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import paramiko

from harness.cluster.hosts import SSH_PORT, Host
from harness.environments.machines.machine import MachineError
from harness.environments.ssh.known_hosts import HostKeyStatus, KnownHosts, entry_name, fingerprint

LOGIN_LIMIT_S: Final = 30.0
"""For each step of connecting and logging in."""
USUAL_KEYS: Final = ("id_ed25519", "id_ecdsa", "id_rsa")
USUAL_KNOWN_HOSTS: Final = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")

# Paramiko logs each failure, too, and Python prints exceptions that are not handled: here every failure is raised once.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class _Locked(MachineError):
    """A key file cannot be used without its passphrase."""


def logged_in(name: str, host: Host) -> paramiko.Transport:
    """Connect, check the host's key, log in. `name` is the node's, for messages. Raises MachineError."""
    known = _known_hosts(name, host)
    transport = _connect(name, host, known.kinds(host.address, host.port))
    try:
        _check_host_key(name, host, known, transport.get_remote_server_key().asbytes())
        _log_in(name, host, transport)
    except BaseException:
        transport.close()
        raise
    return transport


def reason_of(error: BaseException) -> str:
    """The reason of a failure, in one line."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


# ---- the host's key --------------------------------------------------------------------------------------------------


def _known_hosts(name: str, host: Host) -> KnownHosts:
    if host.known_hosts:
        path = Path(host.known_hosts).expanduser()
        try:
            return KnownHosts.read([path])
        except OSError as error:
            raise MachineError(f"{name}: known_hosts {path} cannot be read: {reason_of(error)}") from None
    paths = [Path(path).expanduser() for path in USUAL_KNOWN_HOSTS]
    try:
        return KnownHosts.read(path for path in paths if path.exists())
    except OSError as error:
        raise MachineError(f"{name}: {error.filename} cannot be read: {reason_of(error)}") from None


def _connect(name: str, host: Host, kinds: Sequence[str]) -> paramiko.Transport:
    where = host.address if host.port == SSH_PORT else f"{host.address} port {host.port}"
    try:
        # IPv4 alone: it is the address that the other nodes and the rules of a partition use.
        connected = socket.create_connection((socket.gethostbyname(host.address), host.port), LOGIN_LIMIT_S)
    except OSError as error:
        raise MachineError(f"{name}: no SSH at {where}: {reason_of(error)}") from None
    transport = paramiko.Transport(connected)
    try:
        # Paramiko's own limits must not come before ours, which says which step has no answer.
        transport.banner_timeout = transport.handshake_timeout = 2 * LOGIN_LIMIT_S
        options = transport.get_security_options()
        known_first = [algorithm for kind in kinds for algorithm in _algorithms(kind) if algorithm in options.key_types]
        options.key_types = [*known_first, *(kind for kind in options.key_types if kind not in known_first)]
        _negotiate(transport)
        return transport
    except TimeoutError:
        transport.close()
        silent = f"{where} accepts connections and has not answered in SSH after {LOGIN_LIMIT_S:g} s"
        raise MachineError(f"{name}: {silent}; is its sshd hung, or the port another service's?") from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        transport.close()
        raise MachineError(f"{name}: what answers at {where} does not speak SSH with us: {reason_of(error)}") from None


def _negotiate(transport: paramiko.Transport) -> None:
    """Agree on keys with the host. Raises TimeoutError: `start_client` itself returns without one at its limit."""
    negotiated = threading.Event()
    transport.start_client(negotiated)
    if not negotiated.wait(LOGIN_LIMIT_S):
        raise TimeoutError
    if not transport.is_active():
        raise transport.get_exception() or paramiko.SSHException("the connection was closed")


def _algorithms(kind: str) -> tuple[str, ...]:
    """How a host may sign with a key of this type."""
    return ("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,)


def _check_host_key(name: str, host: Host, known: KnownHosts, key: bytes) -> None:
    entry, file = entry_name(host.address, host.port), host.known_hosts or USUAL_KNOWN_HOSTS[0]
    shown = f"{name}: {entry} shows the host key {fingerprint(key)}"
    scan = f"ssh-keyscan{'' if host.port == SSH_PORT else f' -p {host.port}'} {host.address} >>{file}"
    match known.status_of(host.address, host.port, key):
        case HostKeyStatus.UNKNOWN:
            raise MachineError(f"{shown}, which is not in {file}; if it is the host's own, add it: {scan}")
        case HostKeyStatus.OTHER:
            raise MachineError(
                f"{shown}, but {file} has another: it is another host, or was set up anew; "
                f"if so: ssh-keygen -R '{entry}' -f {file}, then {scan}"
            )
        case HostKeyStatus.REVOKED:
            raise MachineError(f"{shown}, which {file} revokes")


# ---- our key ---------------------------------------------------------------------------------------------------------


def _log_in(name: str, host: Host, transport: paramiko.Transport) -> None:
    transport.auth_timeout = LOGIN_LIMIT_S
    refusals = []
    for label, key in _keys(name, host):
        try:
            if not transport.auth_publickey(host.user, key):
                return
            refusals.append(f"{label} is not enough for it alone")
        except paramiko.AuthenticationException as error:
            if "timeout" in str(error).lower():
                unanswered = f"{host.address} has not answered the login with {label} after {LOGIN_LIMIT_S:g} s"
                raise MachineError(f"{name}: {unanswered}") from None
            refusals.append(label)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise MachineError(f"{name}: logging in at {host.address} failed: {reason_of(error)}") from None
        if not transport.is_active():
            break
    tried = f"refused {', '.join(refusals)}" if refusals else "was offered no key: there is none in the agent or ~/.ssh"
    raise MachineError(f"{name}: {host.address} {tried}; the public key must be in {host.user}'s authorized_keys there")


def _keys(name: str, host: Host) -> Iterator[tuple[str, paramiko.PKey]]:
    """The keys to try, each with its name for messages."""
    agent = paramiko.Agent()
    try:
        if host.key:
            yield host.key, _named_key(name, Path(host.key).expanduser(), agent)
            return
        for key in agent.get_keys():
            yield f"the agent's {getattr(key, 'comment', '') or key.get_name()}", key
    finally:
        agent.close()
    for path in (Path("~/.ssh").expanduser() / usual for usual in USUAL_KEYS):
        try:
            yield str(path), _load(name, path)
        except MachineError:
            continue  # not there, or a passphrase on it: another key may do


def _named_key(name: str, path: Path, agent: paramiko.Agent) -> paramiko.PKey:
    """The key in a file, or the agent's where the file is locked and its public half beside it is the agent's."""
    try:
        return _load(name, path)
    except _Locked:
        try:
            public = path.with_name(f"{path.name}.pub").read_text(encoding="utf-8").split()[1]
        except (OSError, UnicodeDecodeError, IndexError):
            public = ""
        for key in agent.get_keys():
            if key.get_base64() == public:
                return key
        raise


def _load(name: str, path: Path) -> paramiko.PKey:
    try:
        return paramiko.PKey.from_path(path)
    except OSError as error:
        raise MachineError(f"{name}: key {path} cannot be read: {reason_of(error)}") from None
    except (paramiko.PasswordRequiredException, TypeError):
        raise _Locked(f"{name}: key {path} is protected by a passphrase; ssh-add {path} first") from None
    except Exception as error:  # whatever the key's parser makes of what is no key
        raise MachineError(f"{name}: {path} is not a private key that can be used: {reason_of(error)}") from None
