"""Answers to the exercises of lesson 08. The tests put each section into its stub's place and run the notebook."""


# --- 08.1
class Repaired(Draft):
    positions = Stage.positions

    def append(self, seqs, step):
        for layer, (k, v) in enumerate(step.new):
            for i, seq in enumerate(seqs):
                cache = self.caches[seq.seq_id][layer]
                cache[0] = torch.cat([cache[0], k[i].unsqueeze(1)], dim=1)
                cache[1] = torch.cat([cache[1], v[i].unsqueeze(1)], dim=1)

    def free(self, seq):
        Stage.free(self, seq)
        self.caches.pop(seq.seq_id, None)


# --- 08.2
class Room:
    """K and V of one sequence in one layer, with room to spare."""

    def __init__(self, *, num_kv_heads, head_dim, dtype, device):
        self.length = 0
        self.keys = torch.empty(num_kv_heads, 16, head_dim, dtype=dtype, device=device)
        self.values = torch.empty_like(self.keys)

    def append(self, k, v):
        end = self.length + k.size(0)
        self.make_room(end)
        self.keys[:, self.length : end] = k.transpose(0, 1)
        self.values[:, self.length : end] = v.transpose(0, 1)
        self.length = end

    def make_room(self, num_tokens):
        capacity = self.keys.size(1)
        if num_tokens > capacity:
            while capacity < num_tokens:
                capacity *= 2
            self.keys, self.values = self.grown(self.keys, capacity), self.grown(self.values, capacity)

    def grown(self, old, capacity):
        new = old.new_empty(old.size(0), capacity, old.size(2))
        new[:, : self.length] = old[:, : self.length]
        return new

    def kv(self):
        return self.keys[:, : self.length], self.values[:, : self.length]


# --- 08.3
class Contiguous(Stage):
    def __init__(self, model, *, num_blocks, block_size=64, max_num_seqs=64):
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        self.rooms = {}

    def write_prompt(self, seq, layer, k, v):
        c = self.config
        room = Room(num_kv_heads=c.num_kv_heads, head_dim=c.head_dim, dtype=k.dtype, device=k.device)
        room.append(k, v)
        self.rooms.setdefault(seq.seq_id, []).append(room)

    def free(self, seq):
        super().free(seq)
        self.rooms.pop(seq.seq_id, None)


# --- 08.4
class MyStep:
    def __init__(self, rooms):
        self.rooms = rooms
        self.new = []

    def __call__(self, layer, q, k, v):
        self.new.append((k, v))
        out = torch.empty_like(q)
        for i, rooms in enumerate(self.rooms):
            keys, values = rooms[layer].kv()
            keys = torch.cat([keys, k[i].unsqueeze(1)], dim=1)
            values = torch.cat([values, v[i].unsqueeze(1)], dim=1)
            query = q[i].unsqueeze(1)
            row = F.scaled_dot_product_attention(query[None], keys[None], values[None], enable_gqa=True)
            out[i] = row[0, :, 0]
        return out


class Mine(Contiguous):
    def build(self, seqs):
        return MyStep([self.rooms[seq.seq_id] for seq in seqs])

    def append(self, seqs, step):
        for layer, (k, v) in enumerate(step.new):
            for i, seq in enumerate(seqs):
                self.rooms[seq.seq_id][layer].append(k[i : i + 1], v[i : i + 1])


# --- 08.5
class InPlaceStep(MyStep):
    """The new token is in its room before attention reads it; it counts when append says so."""

    def __call__(self, layer, q, k, v):
        out = torch.empty_like(q)
        for i, rooms in enumerate(self.rooms):
            room, end = rooms[layer], rooms[layer].length + 1
            room.keys[:, end - 1], room.values[:, end - 1] = k[i], v[i]
            keys, values = room.keys[None, :, :end], room.values[None, :, :end]
            query = q[i][None, :, None]
            out[i] = F.scaled_dot_product_attention(query, keys, values, enable_gqa=True)[0, :, 0]
        return out


class Doubling(Mine):
    name = "doubling"

    def build(self, seqs):
        rooms = [self.rooms[seq.seq_id] for seq in seqs]
        for room in (room for layers in rooms for room in layers):
            room.make_room(room.length + 1)
        return InPlaceStep(rooms)

    def append(self, seqs, step):
        for room in (room for layers in step.rooms for room in layers):
            room.length += 1


contender = Doubling
