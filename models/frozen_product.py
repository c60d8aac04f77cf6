"""The product with frozen layers as an autograd function. Imported only to train around layers without an adapter."""

import torch


class FrozenProduct(torch.autograd.Function):
    """`Linear.product` with a gradient for its input alone; saves no tensor for the backward."""

    @staticmethod
    def forward(ctx, x, layers):
        ctx.layers = layers
        return layers[0].product(x, layers)

    @staticmethod
    def backward(ctx, grad):
        return ctx.layers[0].product_back(grad.contiguous(), ctx.layers), None
