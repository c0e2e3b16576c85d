"""Apache Kafka's jars: its server, its tools and what they need, fetched once by Maven."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

VERSION = "4.1.1"
_POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>faultline.tests</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


def fetch_jars() -> Path:
    """The directory with Kafka's jars; Maven fetches them the first time. Raises OSError or CalledProcessError."""
    home = Path(tempfile.gettempdir()) / f"faultline-kafka-{VERSION}"
    libraries = home / "libs"
    if not libraries.exists():
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as scratch:
            (Path(scratch) / "pom.xml").write_text(_POM.format(version=VERSION))
            partial = Path(scratch) / "libs"
            command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
            subprocess.run(command, cwd=scratch, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if not libraries.exists():  # another process may have been faster
                shutil.move(partial, libraries)
    return libraries
