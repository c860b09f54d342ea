"""EDM preconditioning (Karras et al. 2022, Table 1) as pure functions of sigma and s = sigma_data, in float64.

D(z, sigma) = c_skip * z + c_out * F(c_in * z, c_noise), with weight on the squared error of D. The scalings are cast
once, to the dtype of what they multiply, by `per_sample`.
"""

from torch import Tensor


def c_skip(sigma: Tensor, sigma_data: float) -> Tensor:
    """s^2 / (sigma^2 + s^2): the share of z in the denoised target."""
    return sigma_data**2 / (sigma**2 + sigma_data**2)


def c_out(sigma: Tensor, sigma_data: float) -> Tensor:
    """sigma * s / sqrt(sigma^2 + s^2): the scale of the network's output."""
    return sigma * sigma_data / (sigma**2 + sigma_data**2).sqrt()


def c_in(sigma: Tensor, sigma_data: float) -> Tensor:
    """1 / sqrt(sigma^2 + s^2): gives the network an input of unit variance."""
    return 1.0 / (sigma**2 + sigma_data**2).sqrt()


def scaled(z: Tensor, sigma: Tensor, sigma_data: float) -> Tensor:
    """c_in * z: the noisy target as the network sees it; z (B, ...), sigma (B,), or (B, n) for z (B, n, ...)."""
    return per_sample(c_in(sigma, sigma_data), z) * z


def c_noise(sigma: Tensor) -> Tensor:
    """ln(sigma) / 4: the noise level as the network sees it, in about [-1.6, 1.1]."""
    return sigma.log() / 4.0


def edm_weight(sigma: Tensor, sigma_data: float) -> Tensor:
    """(sigma^2 + s^2) / (sigma * s)^2 = 1 / c_out^2: makes the weighted L2 loss of D the plain L2 loss of F."""
    return (sigma**2 + sigma_data**2) / (sigma * sigma_data) ** 2


def per_sample(scaling: Tensor, like: Tensor) -> Tensor:
    """A scaling (B,) or (B, n) with 1s added to its shape to multiply `like` (B, ...), cast once to its dtype."""
    return scaling.to(dtype=like.dtype, device=like.device).reshape(*scaling.shape, *[1] * (like.ndim - scaling.ndim))
