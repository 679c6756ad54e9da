# --- 18.1
def product(out, x, weight, bias):
    for m in prange(len(weight)):
        total = np.float32(0)
        for k in range(len(x)):
            total += weight[m, k] * x[k]
        out[m] = total + bias[m]


# --- 18.2
def fold_norm(norm, weight, bias):
    return weight * norm[0], weight @ norm[1] + bias


# --- 18.3
def attend_prompt(out, q, k, v, k_cache, v_cache, slots):
    for n in prange(len(q)):
        k_cache[slots[n]] = k[n]
        v_cache[slots[n]] = v[n]
    for n in prange(len(q)):  # begins when all K and V are written
        scores = np.empty(n + 1, np.float32)
        for t in range(n + 1):
            scores[t] = (q[n] * k_cache[slots[t]]).sum()
        weights = np.exp(scores - scores.max())
        out[n] = 0
        for t in range(n + 1):
            out[n] += weights[t] / weights.sum() * v_cache[slots[t]]


# --- 18.4
def my_product(out, x, weight, bias):
    for m in prange(len(weight)):
        for n in range(0, len(x) - 3, 4):
            a = b = c = d = np.float32(0)
            for k in range(x.shape[1]):
                w = weight[m, k]  # loaded once, for four rows
                a += w * x[n, k]
                b += w * x[n + 1, k]
                c += w * x[n + 2, k]
                d += w * x[n + 3, k]
            out[n, m] = a + bias[m]
            out[n + 1, m] = b + bias[m]
            out[n + 2, m] = c + bias[m]
            out[n + 3, m] = d + bias[m]
        for n in range(len(x) // 4 * 4, len(x)):
            total = np.float32(0)
            for k in range(x.shape[1]):
                total += weight[m, k] * x[n, k]
            out[n, m] = total + bias[m]
