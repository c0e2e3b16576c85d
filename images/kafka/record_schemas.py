"""Records of Kafka's metadata, decoded by the schemas that Kafka itself is generated from.

The `kafka-metadata` archive of a release has a JSON file for each record (`common/metadata/*.json`): its number, its
versions, and its fields with their types. A record of `__cluster_metadata` is a frame version, the number and the
version of the record (unsigned varints), then its fields in the flexible encoding (KIP-482): lengths as varints plus
one, and fields that are tagged, with a default, at the end of each structure.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

from images.wire.codec import Malformed, decode_varint

_FRAME_VERSION: Final = 1
_COMMENT: Final = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*')
_VERSIONS: Final = re.compile(r"(\d+)(?:(\+)|-(\d+))?")
_NUMBERS: Final = {
    "bool": struct.Struct(">?"),
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "uint32": struct.Struct(">I"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
}


class MetadataRecord(NamedTuple):
    """One decoded record: the name in its schema, its version, and its fields by name, those at a default included."""

    name: str
    version: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Versions:
    """A range of versions: `0+`, `1-3`, `2`, or `none`."""

    first: int = 1
    last: int = 0

    @classmethod
    def of(cls, text: str) -> Self:
        match = _VERSIONS.fullmatch(text)
        if match is None:
            return cls()
        first = int(match[1])
        return cls(first, 1 << 15 if match[2] else int(match[3] or first))

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    type: str
    versions: _Versions
    tagged: _Versions
    tag: int
    default: Any
    fields: tuple[_Field, ...] = field(default=())

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Self:
        kind = schema["type"]
        return cls(
            schema["name"],
            kind,
            _Versions.of(schema["versions"]),
            _Versions.of(schema.get("taggedVersions", "none")),
            schema.get("tag", -1),
            _default(kind, schema.get("default", "")),
            tuple(cls.of(inner) for inner in schema.get("fields", ())),
        )


def _default(kind: str, text: Any) -> Any:
    if text == "null":
        return None
    if kind.startswith("[]"):
        return ()
    if kind == "bool":
        return str(text).lower() == "true"
    if kind in _NUMBERS:
        return float(text or 0) if kind == "float64" else int(str(text or 0), 0)
    return {"uuid": UUID(int=0), "bytes": b""}.get(kind, text)


@dataclass(frozen=True, slots=True)
class _Schema:
    name: str
    versions: _Versions
    fields: tuple[_Field, ...]


class RecordSchemas:
    """The records of one release, by their number."""

    def __init__(self, texts: Iterable[str]) -> None:
        """`texts`: Kafka's schemas, JSON with comments; those that are not of metadata records are left out."""
        self._schemas: dict[int, _Schema] = {}
        for text in texts:
            schema = json.loads(_COMMENT.sub(lambda match: match[1] or "", text))
            if schema.get("type") == "metadata":
                fields = tuple(_Field.of(item) for item in schema["fields"])
                versions = _Versions.of(schema["validVersions"])
                self._schemas[schema["apiKey"]] = _Schema(schema["name"], versions, fields)

    def decode(self, record: bytes) -> MetadataRecord:
        """One record of the metadata log. Raises Malformed, in one line."""
        frame_version, place = decode_varint(record, 0)
        number, place = decode_varint(record, place)
        version, place = decode_varint(record, place)
        schema = self._schemas.get(number)
        if frame_version != _FRAME_VERSION or schema is None or version not in schema.versions:
            what = schema.name if schema is not None else f"record {number}"
            raise Malformed(f"{what} in version {version} of frame version {frame_version} is unknown to this release")
        source = _Source(record, place)
        try:
            fields = source.struct(schema.fields, version)
        except (struct.error, UnicodeDecodeError) as error:
            raise Malformed(f"{schema.name} in version {version}: {error}") from None
        if source.place != len(record):
            raise Malformed(f"{schema.name} in version {version}: {len(record) - source.place} bytes are left over")
        return MetadataRecord(schema.name, version, fields)


class _Source:
    """Reads values one after the other."""

    def __init__(self, data: bytes, place: int = 0) -> None:
        self._data = data
        self.place = place

    def struct(self, fields: Iterable[_Field], version: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        tagged: dict[int, _Field] = {}
        for item in fields:
            if version in item.tagged:
                tagged[item.tag] = item
            if version in item.versions and version not in item.tagged:
                values[item.name] = self._value(item.type, item.fields, version)
            else:
                values[item.name] = item.default
        for _ in range(self._varint()):
            tag, size = self._varint(), self._varint()
            end = self.place + size
            if tag in tagged:
                item = tagged[tag]
                values[item.name] = self._value(item.type, item.fields, version)
                if self.place != end:
                    raise Malformed(f"{item.name}: a tagged field of {size} bytes ends elsewhere")
            else:
                self._bytes(size)
        return values

    def _value(self, kind: str, fields: tuple[_Field, ...], version: int) -> Any:
        if kind.startswith("[]"):
            length = self._varint() - 1
            if length < 0:
                return None
            return tuple(self._value(kind[2:], fields, version) for _ in range(length))
        number = _NUMBERS.get(kind)
        if number is not None:
            return number.unpack(self._bytes(number.size))[0]
        if kind == "uuid":
            return UUID(bytes=self._bytes(16))
        if kind in ("string", "bytes"):
            length = self._varint() - 1
            if length < 0:
                return None
            contents = self._bytes(length)
            return contents.decode() if kind == "string" else contents
        return self.struct(fields, version)

    def _varint(self) -> int:
        value, self.place = decode_varint(self._data, self.place)
        return value

    def _bytes(self, size: int) -> bytes:
        start, self.place = self.place, self.place + size
        if self.place > len(self._data):
            raise Malformed(f"{size} bytes from {start} on are more than the record has")
        return self._data[start : self.place]
