"""The one file of a multipart form, piece by piece: nothing of it is held."""

from __future__ import annotations

from dataclasses import dataclass, field

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from api.errors import MalformedBody


@dataclass(slots=True)
class FilePart:
    """What is known of the file once its first byte is there."""

    filename: str = ""
    content_type: str = ""


@dataclass(slots=True)
class _Part:
    headers: dict[str, str] = field(default_factory=dict)
    name: bytes = b""
    value: bytes = b""


class FormFile:
    """Feeds a form's body to a parser and gives back the content of its part `file`.

    Raises:
        MalformedBody: not multipart, or a form of other parts than one file.
    """

    def __init__(self, content_type: str) -> None:
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not boundary:
            raise MalformedBody("the Content-Type of a form needs a boundary")
        self.file: FilePart | None = None
        self._part = _Part()
        self._found = bytearray()
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_end": self._on_end,
            },
        )

    def feed(self, chunk: bytes) -> bytes:
        """What of the file is in this piece of the body."""
        try:
            self._parser.write(chunk)
        except MultipartParseError as error:
            raise MalformedBody(f"the form cannot be read: {error}") from error
        found, self._found = bytes(self._found), bytearray()
        return found

    def finish(self) -> FilePart:
        """The file, once the body has ended."""
        if not self._ended:
            raise MalformedBody("the form ends before its last boundary")
        if self.file is None:
            raise MalformedBody("the form has no part `file`")
        return self.file

    def _on_part_begin(self) -> None:
        self._part = _Part()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._part.name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._part.value += data[start:end]

    def _on_header_end(self) -> None:
        part = self._part
        part.headers[part.name.decode("latin-1").lower()] = part.value.decode("utf-8", "replace")
        part.name = part.value = b""

    def _on_headers_finished(self) -> None:
        # As bytes: of text it takes only what is Latin-1.
        options = parse_options_header(self._part.headers.get("content-disposition", "").encode())[1]
        if options.get(b"name") != b"file" or self.file is not None:
            raise MalformedBody("the form must have one part, named `file`")
        filename = options.get(b"filename", b"").decode("utf-8", "replace")
        self.file = FilePart(filename, self._part.headers.get("content-type", ""))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._found += data[start:end]

    def _on_end(self) -> None:
        self._ended = True
