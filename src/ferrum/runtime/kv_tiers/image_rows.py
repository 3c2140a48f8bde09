"""Rows of images on disk, next to the pages of the persistent prefix cache, so that a restarted engine has them.

Rows in memory are in `engine/held_images.py`.
"""

from __future__ import annotations

import hashlib

import numpy as np

from ferrum.cache.page_hashes import PrefixScope
from ferrum.kernels.operations import F32
from ferrum.runtime.kv_tiers.page_tier import PageFiles


class ImageRows:
    """Rows of images by tenant, salt and digest of the image. For one thread at a time.

    Args:
        files: of the prefix cache. Rows and pages share its limit, and the least recently used go first.
        scope: what else rows depend on.
    """

    def __init__(self, files: PageFiles, scope: PrefixScope) -> None:
        self._files, self._scope = files, scope

    def get(self, key: tuple[str, str, bytes], count: int) -> F32 | None:
        """Return the rows of an image, f32 [count, any]; None if they are not there, or damaged."""
        content = self._files.get(self._name(key))
        if content is None:
            return None
        rows = np.empty(len(content) // 4, np.float32)
        rows.view(np.uint8)[:] = content
        return rows.reshape(count, -1)

    def put(self, key: tuple[str, str, bytes], rows: F32) -> None:
        """Write the rows of an image."""
        self._files.put(self._name(key), np.ascontiguousarray(rows).reshape(-1).view(np.uint8))

    def _name(self, key: tuple[str, str, bytes]) -> bytes:
        tenant, salt, digest = key
        return hashlib.sha256(self._scope.root(tenant=tenant, salt=salt) + b"rows of an image" + digest).digest()
