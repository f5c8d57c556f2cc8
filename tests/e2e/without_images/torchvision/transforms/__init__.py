"""See `torchvision`."""

from torchvision import __getattr__ as __getattr__


class InterpolationMode:
    """Its members are read when image processors are imported."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
