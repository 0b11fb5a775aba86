"""A small convolutional network in numpy, with gradients by hand, and the same network as an ONNX model.

The network of atari_ppo.py, which is the program to run. It has the layers of Mnih et al., "Playing Atari with Deep
Reinforcement Learning", https://arxiv.org/abs/1312.5602, and a value beside the policy.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper, numpy_helper

import rollserve

CONVOLUTIONS = {"first": (16, 8, 4), "second": (32, 4, 2)}
"""Number of outputs, size of the window, and stride of each convolution."""
NUM_HIDDEN = 256


class ConvolutionalNetwork:
    """Two convolutions and a hidden layer, all with ReLU, below the logits of a policy and a value.

    Parameters have the names and shapes of PyTorch's `Conv2d` and `Linear`. All is computed in their dtype.
    """

    def __init__(self, parameters: dict[str, np.ndarray]) -> None:
        self.parameters = parameters
        self._layers = {
            name: Layer(parameters[f"{name}.weight"], parameters[f"{name}.bias"], relu=name not in ("logits", "value"))
            for name in (*CONVOLUTIONS, "hidden", "logits", "value")
        }

    @classmethod
    def initial(cls, observation_shape: tuple[int, ...], num_actions: int, seed: int) -> ConvolutionalNetwork:
        """Return a network for frames (K, height, width), with normal weights and nearly equal logits."""
        num_channels, *sides = observation_shape
        shapes: dict[str, tuple[int, ...]] = {}
        for name, (num_outputs, size, stride) in CONVOLUTIONS.items():
            shapes[name] = (num_outputs, num_channels, size, size)
            num_channels, sides = num_outputs, [(side - size) // stride + 1 for side in sides]
        shapes["hidden"] = (NUM_HIDDEN, num_channels * math.prod(sides))
        shapes |= {"logits": (num_actions, NUM_HIDDEN), "value": (1, NUM_HIDDEN)}

        generator, parameters = np.random.default_rng(seed), {}
        for name, shape in shapes.items():
            scale = 0.01 if name == "logits" else math.sqrt(2)
            weight = scale / math.sqrt(math.prod(shape[1:])) * generator.standard_normal(shape)
            parameters[f"{name}.weight"] = weight.astype(np.float32)
            parameters[f"{name}.bias"] = np.zeros(shape[0], np.float32)
        return cls(parameters)

    def forward(self, frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return logits (B, actions) and values (B,) for frames (B, K, height, width) of bytes.

        Each layer keeps its input for `backward`.
        """
        layers = self._layers
        x = frames * layers["first"].weight.dtype.type(1 / 255)
        for name, (_, size, stride) in CONVOLUTIONS.items():
            x = np.moveaxis(layers[name].forward(patches_of(x, size, stride)), 3, 1)
        x = layers["hidden"].forward(x.reshape(len(x), -1))
        return layers["logits"].forward(x), layers["value"].forward(x)[:, 0]

    def backward(self, logits_gradient: np.ndarray, values_gradient: np.ndarray) -> dict[str, np.ndarray]:
        """Return the gradient of each parameter, for gradients of the logits (B, actions) and the values (B,)."""
        layers, (_, size, stride) = self._layers, CONVOLUTIONS["second"]
        layers["logits"].backward(logits_gradient)
        layers["value"].backward(values_gradient[:, np.newaxis])
        layers["hidden"].backward(layers["logits"].input_gradient() + layers["value"].input_gradient())
        _, height, width, num_channels = layers["second"].output.shape
        gradient = layers["hidden"].input_gradient().reshape(-1, num_channels, height, width)
        layers["second"].backward(np.moveaxis(gradient, 1, 3))
        _, height, width, num_channels = layers["first"].output.shape
        patches = layers["second"].input_gradient().reshape(-1, *gradient.shape[2:], num_channels, size, size)
        layers["first"].backward(sum_of_patches(patches, stride, height, width))
        return {f"{name}.{part}": value for name, layer in layers.items() for part, value in layer.gradients.items()}

    def save(self, path: Path) -> None:
        """Write the parameters into a file."""
        arrays: dict[str, Any] = self.parameters
        with path.open("wb") as file:
            np.savez(file, **arrays)

    def load(self, path: Path) -> None:
        """Read the parameters from such a file."""
        with np.load(path) as saved:
            for name, array in self.parameters.items():
                array[...] = saved[name]

    def agent(self, observation_shape: tuple[int, ...]) -> rollserve.OnnxAgent:
        """Return the policy and its value as an agent for the server, with the network's parameters by their names."""
        nodes = [
            helper.make_node("Cast", ["observation"], ["bytes"], to=TensorProto.FLOAT),
            helper.make_node("Constant", [], ["scale"], value_float=1 / 255),
            helper.make_node("Mul", ["bytes", "scale"], ["x0"]),
        ]
        for i, (name, (_, _, stride)) in enumerate(CONVOLUTIONS.items()):
            inputs = [f"x{i}", f"{name}.weight", f"{name}.bias"]
            nodes.append(helper.make_node("Conv", inputs, [name], strides=[stride, stride]))
            nodes.append(helper.make_node("Relu", [name], [f"x{i + 1}"]))
        nodes.append(helper.make_node("Flatten", [f"x{len(CONVOLUTIONS)}"], ["flat"]))
        for name, x in (("hidden", "flat"), ("logits", "active"), ("value", "active")):
            nodes.append(helper.make_node("Gemm", [x, f"{name}.weight", f"{name}.bias"], [name], transB=1))
            if name == "hidden":
                nodes.append(helper.make_node("Relu", [name], ["active"]))
        num_actions = len(self.parameters["logits.bias"])
        graph = helper.make_graph(
            nodes,
            "policy",
            [helper.make_tensor_value_info("observation", TensorProto.UINT8, ["N", *observation_shape])],
            [
                helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", num_actions]),
                helper.make_tensor_value_info("value", TensorProto.FLOAT, ["N", 1]),
            ],
            [numpy_helper.from_array(value, name) for name, value in self.parameters.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        return rollserve.OnnxAgent(model.SerializeToString(), head="categorical")


class Layer:
    """A linear map of vectors, which lie along the last axis, with or without ReLU.

    Attributes:
        weight: (outputs, …). The map sees all axes but the first as one.
        bias: (outputs,).
        output: output of the last `forward`.
        gradients: gradients of `weight` and `bias` by name, of the last `backward`.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray, *, relu: bool) -> None:
        self.weight, self.bias = weight, bias
        self.output: np.ndarray = np.empty((0, 0))
        self.gradients: dict[str, np.ndarray] = {}
        self._relu = relu
        self._input: np.ndarray = self.output
        self._gradient: np.ndarray = self.output

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Return (…, outputs) for (…, inputs)."""
        self._input, self.output = x, x @ self._matrix.T + self.bias
        if self._relu:
            np.maximum(self.output, 0, out=self.output)
        return self.output

    def backward(self, gradient: np.ndarray) -> None:
        """Compute the gradients of weight and bias, from the gradient (…, outputs) of the last output."""
        self._gradient = gradient * (self.output > 0) if self._relu else gradient
        gradients = self._gradient.reshape(-1, len(self.bias))
        weight = gradients.T @ self._input.reshape(len(gradients), -1)
        self.gradients = {"weight": weight.reshape(self.weight.shape), "bias": gradients.sum(axis=0)}

    def input_gradient(self) -> np.ndarray:
        """Return the gradient (…, inputs) of the last input, after `backward`."""
        gradient: np.ndarray = self._gradient @ self._matrix
        return gradient

    @property
    def _matrix(self) -> np.ndarray:
        return self.weight.reshape(len(self.weight), -1)


def patches_of(images: np.ndarray, size: int, stride: int) -> np.ndarray:
    """Return what a convolution multiplies in each place, (B, rows, columns, C · size · size), for images (B, C, …)."""
    windows = sliding_window_view(images, (size, size), axis=(2, 3))[:, :, ::stride, ::stride]
    patches = windows.transpose(0, 2, 3, 1, 4, 5)
    return patches.reshape(*patches.shape[:3], -1)


def sum_of_patches(patches: np.ndarray, stride: int, height: int, width: int) -> np.ndarray:
    """Return images (B, height, width, C), in which patches (B, rows, columns, C, size, size) are added up."""
    num_images, num_rows, num_columns, num_channels, size, _ = patches.shape
    images = np.zeros((num_images, height, width, num_channels), patches.dtype)
    for i in range(size):
        for j in range(size):
            rows, columns = slice(i, i + stride * num_rows, stride), slice(j, j + stride * num_columns, stride)
            images[:, rows, columns] += patches[..., i, j]
    return images
