"""Pages of the protos: each RPC, message, field and enum with the comment that stands in its file."""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

__all__ = ["proto_pages"]

# Numbers of fields in `descriptor.proto`, which make up the places of comments.
_MESSAGE, _ENUM, _SERVICE = 4, 5, 6  # FileDescriptorProto
_FIELD, _NESTED, _NESTED_ENUM, _ONEOF = 2, 3, 4, 8  # DescriptorProto
_VALUE = _METHOD = 2  # EnumDescriptorProto, ServiceDescriptorProto
_PACKAGE = 2

_PACKAGE_NAME = re.compile(r"^\.([a-z]\w*\.)*")
"""What full names begin with: packages, unlike messages, are in lower case."""

_PLAIN_TYPES = {
    value: name.removeprefix("TYPE_").lower()
    for name, value in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}


class _Proto(NamedTuple):
    """A file, its comments by their places, and the page of each message and enum of all files, by full name."""

    file: FileDescriptorProto
    comments: Mapping[tuple[int, ...], str]
    pages: Mapping[str, str]


def proto_pages(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of a page for each file in a folder of protos, and of one that lists them."""
    command = [str(Path(sys.executable).parent / "buf"), "build", str(folder), "--as-file-descriptor-set", "-o", "-"]
    built = subprocess.run(command, capture_output=True, check=True).stdout  # noqa: S603
    own = [file for file in FileDescriptorSet.FromString(built).file if not file.name.startswith("google/")]
    pages = {
        name: _page(file) for file in own for name in _names(f".{file.package}", file.message_type, file.enum_type)
    }
    about, listed = "", []
    for file in sorted(own, key=lambda each: (not each.service, each.name)):
        comments = {tuple(each.path): each.leading_comments for each in file.source_code_info.location}
        proto, title = _Proto(file, comments, pages), posixpath.basename(file.name)
        about = about or _comment(proto, (_PACKAGE,))
        first = _comment(proto, (_SERVICE if file.service else _MESSAGE if file.message_type else _ENUM, 0))
        listed.append(f"- [{title}]({_page(file)}): {_first_sentence(first)}")
        yield _page(file), "\n\n".join([f"# {title}", *_content(proto)]) + "\n"
    names = "\n".join(_page(file).removesuffix(".md") for file in own)
    tree = f"```{{toctree}}\n:hidden:\n\n{names}\n```"
    yield "index.md", "\n\n".join(["# Protos", about, "\n".join(listed), tree]) + "\n"


def _page(file: FileDescriptorProto) -> str:
    return posixpath.basename(file.name).replace(".proto", ".md")


def _names(scope: str, messages: Sequence[DescriptorProto], enums: Sequence[EnumDescriptorProto]) -> Iterator[str]:
    for enum in enums:
        yield f"{scope}.{enum.name}"
    for message in messages:
        yield f"{scope}.{message.name}"
        yield from _names(f"{scope}.{message.name}", message.nested_type, message.enum_type)


def _content(proto: _Proto) -> Iterator[str]:
    """Yield the blocks of a file: its services, messages and enums."""
    scope = f".{proto.file.package}"
    for number, service in enumerate(proto.file.service):
        yield from _service(proto, service, (_SERVICE, number))
    for number, message in enumerate(proto.file.message_type):
        yield from _message(proto, message, scope, (_MESSAGE, number))
    for number, enum in enumerate(proto.file.enum_type):
        yield from _enum(proto, enum, scope, (_ENUM, number))


def _service(proto: _Proto, service: ServiceDescriptorProto, place: tuple[int, ...]) -> Iterator[str]:
    yield f"({service.name})=\n\n## {service.name}"
    yield _comment(proto, place)
    for number, method in enumerate(service.method):
        yield f"({service.name}.{method.name})=\n\n### {method.name}"
        request, response = (_link(proto, name) for name in (method.input_type, method.output_type))
        streams = "a stream of " if method.server_streaming else ""
        sends = "a stream of " if method.client_streaming else ""
        yield f"Takes {sends}{request}, returns {streams}{response}."
        yield _comment(proto, (*place, _METHOD, number))


def _message(proto: _Proto, message: DescriptorProto, scope: str, place: tuple[int, ...]) -> Iterator[str]:
    if message.options.map_entry:
        return
    name = f"{scope}.{message.name}"
    yield _heading(proto, name)
    yield _comment(proto, place)
    entries = {f"{name}.{each.name}": each for each in message.nested_type if each.options.map_entry}
    if message.field:
        rows = ["| field | type | meaning |", "|---|---|---|"]
        for number, field in enumerate(message.field):
            meaning = _comment(proto, (*place, _FIELD, number))
            if field.HasField("oneof_index") and not field.proto3_optional:
                meaning = f"*One of `{message.oneof_decl[field.oneof_index].name}`.* {meaning}"
            rows.append(f"| `{field.name}` = {field.number} | {_type(proto, field, entries)} | {_cell(meaning)} |")
        yield "\n".join(rows)
    for number, oneof in enumerate(message.oneof_decl):
        if text := _comment(proto, (*place, _ONEOF, number)):
            yield f"`{oneof.name}`: {text}"
    for number, nested in enumerate(message.nested_type):
        yield from _message(proto, nested, name, (*place, _NESTED, number))
    for number, enum in enumerate(message.enum_type):
        yield from _enum(proto, enum, name, (*place, _NESTED_ENUM, number))


def _enum(proto: _Proto, enum: EnumDescriptorProto, scope: str, place: tuple[int, ...]) -> Iterator[str]:
    yield _heading(proto, f"{scope}.{enum.name}")
    yield _comment(proto, place)
    rows = ["| value | meaning |", "|---|---|"]
    for number, value in enumerate(enum.value):
        rows.append(f"| `{value.name}` = {value.number} | {_cell(_comment(proto, (*place, _VALUE, number)))} |")
    yield "\n".join(rows)


def _heading(proto: _Proto, name: str) -> str:
    short = name.removeprefix(f".{proto.file.package}.")
    return f"({short})=\n\n## {short}"


def _type(proto: _Proto, field: FieldDescriptorProto, entries: Mapping[str, DescriptorProto]) -> str:
    if field.type_name in entries:
        key, value = (_type(proto, each, entries) for each in entries[field.type_name].field)
        return f"map of {key} to {value}"
    name = _PLAIN_TYPES.get(field.type) or _link(proto, field.type_name)
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def _link(proto: _Proto, name: str) -> str:
    """Return a link to a message or an enum of these files; the name alone of others."""
    if name not in proto.pages:
        return f"`{name.removeprefix('.')}`"
    short = _PACKAGE_NAME.sub("", name)
    return f"[{short}]({proto.pages[name]}#{short.lower()})"


def _comment(proto: _Proto, place: tuple[int, ...]) -> str:
    return _text(proto.comments.get(place, ""))


def _text(comment: str) -> str:
    """Return a comment as Markdown: without the blank that follows each `//`."""
    return "\n".join(line.removeprefix(" ") for line in comment.splitlines()).strip()


def _cell(text: str) -> str:
    """Return text for a cell of a table, which has one line."""
    return re.sub(r"\s*\n\s*", " ", text).replace("|", "\\|")


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.:])\s", text.replace("\n", " "), maxsplit=1)[0].rstrip(":.") + "."
