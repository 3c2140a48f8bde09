"""The image processor of LFM2-VL in `transformers` on Pillow.

There it runs on torchvision alone. Its own code decides all sizes, tiles and the order of patches here as well; resize
and normalisation are those of the processors on Pillow.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import image_processing_backends
from transformers.image_processing_backends import PilBackend


class Pillow(PilBackend):
    """Pillow behind the methods of torchvision, which have images of one size as a tensor [n, 3, height, width]."""

    def process_image(self, image: Any, **options: Any) -> torch.Tensor:
        del options["device"]
        return torch.tensor(super().process_image(image, **options))

    def resize(self, image: torch.Tensor, size: Any, resample: Any = None, **_: Any) -> torch.Tensor:
        return torch.stack([torch.tensor(super(Pillow, self).resize(each.numpy(), size, resample)) for each in image])

    def rescale_and_normalize(
        self, images: torch.Tensor, do_rescale: bool, factor: float, do_normalize: bool, mean: Any, deviation: Any
    ) -> torch.Tensor:
        assert do_rescale and do_normalize
        found = [self.normalize(self.rescale(each.numpy(), factor), mean, deviation) for each in images]
        return torch.tensor(np.stack(found))


@cache
def processor_class() -> Any:
    """Return the class of `transformers`, imported over a torchvision that is never called."""
    names = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
    modules = {name: ModuleType(name) for name in names}
    modules[names[-1]].functional = None  # type: ignore[attr-defined]
    with patch.dict(sys.modules, modules), patch.object(image_processing_backends, "TorchvisionBackend", Pillow):
        return import_module("transformers.models.lfm2_vl.image_processing_lfm2_vl").Lfm2VlImageProcessor
