"""Lists an S3 bucket in which some objects have names that obstore refuses.

obstore fails for a whole page of names if one of them has an empty part, `.`, `..` or a control character.
Every writer of the bucket can create such an object. PyArrow lists them. Its client for Azure ends
the process over some of them, so that it isn't used there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from airflow_provider_jmsjca.logs import safe_logger
from airflow_provider_jmsjca.spool.files.client import FoundFile, StoreError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo

_log = safe_logger(__name__)
_OPTIONS: Final = {
    "access_key": "aws_access_key_id",
    "secret_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "region": "aws_region",
    "endpoint_override": "aws_endpoint_url",
}
_DELETE: Final = "\x7f"


class NameTolerantListing:
    """Lists the objects of an S3 bucket, except objects with names that no file has.

    Args:
        root: Such as `s3://bucket`, without a slash at the end.
        options: As for `Cloud`.
    """

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        from pyarrow.fs import S3FileSystem  # noqa: PLC0415 - seldom needed

        def option(name: str) -> str | None:
            return options.get(name) or os.environ.get(name.upper())

        given = {name: value for name, key in _OPTIONS.items() if (value := option(key))}
        self._root = root
        self._files = S3FileSystem(**given)
        self._bucket = urlsplit(root).netloc
        self._reported: set[str] = set()

    def found(self, key: str, *, below: bool) -> list[FoundFile]:
        """Return the objects in a folder; a warning names each object that is passed over, once.

        Args:
            key: The folder; empty for the whole bucket.
            below: Also those in the folders below, instead of these folders.

        Raises:
            StoreError: The store refuses or can't be reached.
        """
        from pyarrow.fs import FileSelector  # noqa: PLC0415 - seldom needed

        folder = f"{self._bucket}/{key}".rstrip("/")
        try:
            listed = self._files.get_file_info(FileSelector(folder, recursive=below, allow_not_found=True))
        except OSError as error:
            raise StoreError(errno.EIO, str(error).partition("\n")[0], f"{self._root}/{key}") from error
        return list(self._sound(folder, listed, below=below))

    def _sound(self, folder: str, listed: Iterable[FileInfo], *, below: bool) -> Iterable[FoundFile]:
        from pyarrow.fs import FileType  # noqa: PLC0415 - seldom needed

        for each in listed:
            is_folder = each.type == FileType.Directory
            if is_folder and below:
                continue
            key = each.path.removeprefix(f"{self._bucket}/")
            parts = each.path.removeprefix(f"{folder}/").split("/")
            if each.path != folder and all(map(_is_file_name, parts)):
                yield FoundFile(key, each.size or 0, each.mtime_ns or 0, is_folder)
            elif key not in self._reported:
                self._reported.add(key)
                _log.warning(
                    "%s: what is named %r, or stands below that name, is no file of the spool and is passed "
                    "over: a part of its name is empty, '.' or '..', or has a control character. Find out "
                    "who writes there, and remove it",
                    self._root,
                    key,
                )


def _is_file_name(part: str) -> bool:
    return part not in {"", ".", ".."} and not any(each < " " or each == _DELETE for each in part)
