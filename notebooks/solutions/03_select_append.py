# --- 03.1
from stages.s01_naive_cat import DenseStep


class KeepNew(DenseStep):
    def __init__(self, past, mask):
        super().__init__(past, mask)
        self.new = []

    def __call__(self, layer, q, k, v):
        self.new.append((k, v))
        return super().__call__(layer, q, k, v)


class FewerSelects(SelectAppend):
    def build(self, seqs):
        step = super().build(seqs)
        return KeepNew(step.past, step.mask)

    def append(self, seqs, step):
        for layer, (k, v) in enumerate(step.new):
            for i, seq in enumerate(seqs):
                self.append_token(seq, layer, k[i], v[i])


# --- 03.2
def slices(index, shape, colon_is_free):
    count = 0
    for part, size in zip(index, shape, strict=False):
        if isinstance(part, int):
            continue
        if part == slice(None):
            count += not colon_is_free
        elif (part.start or 0, part.stop) != (0, size):
            count += 1
    return count


# --- 03.3
lengths_of_the_post = [4, 4, 4, 4, 4, 4, 4, 5]


# --- 03.4
def revealing_prompts():
    return [list(range(5, 65)), [5, 6, 7]]
