# --- 12.1
def bytes_of_weights(num_layers, width, vocab_size, bits):
    weights = num_layers * (3 + 1 + 4 + 4) * width**2 + vocab_size * width
    rows = num_layers * (3 + 1 + 4 + 1) * width + vocab_size
    return weights * bits // 8 + (4 * rows if bits < 16 else 0)


# --- 12.2
def quantize(weight):
    scales = weight.abs().amax(dim=1) / 127
    steps = torch.where(scales > 0, scales, 1)  # a row of zeros is divided by 1
    return (weight / steps[:, None]).round().to(torch.int8), scales


# --- 12.3
def product(x, values, scales):
    out = torch.zeros(len(x), len(values))
    for group, columns in zip(x.split(64, dim=1), values.split(64, dim=1), strict=True):
        rounded, group_scales = quantize(group)
        out += (rounded.int() @ columns.int().T) * group_scales[:, None]
    return out * scales


# --- 12.4
def pack_4_bits(weight, group):
    groups = weight.unflatten(1, (-1, group))
    largest = groups.gather(2, groups.abs().argmax(dim=2, keepdim=True))
    scales = largest / -8
    steps = torch.where(scales == 0, 1, scales)  # a group of zeros is divided by 1
    values = ((groups / steps).round().clamp(-8, 7) + 8).to(torch.uint8).flatten(1)
    return values[:, 0::2] + 16 * values[:, 1::2], scales[:, :, 0]


# --- 12.5
class HalfLinear(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        half, self.bias = weight.to(torch.bfloat16), bias
        self.layer = PackedLinear(half, None) if packs(torch.bfloat16) else partial(F.linear, weight=half)

    def forward(self, x):
        out = self.layer(x.to(torch.bfloat16)).to(x.dtype)
        return out if self.bias is None else out + self.bias


class HalfWeights(PackedWeights):
    @classmethod
    def pack(cls, weight, bias):
        return HalfLinear(weight, bias)
