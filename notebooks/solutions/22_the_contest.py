# --- 22.1
from statistics import median


def score(baseline, own):
    ratio = median(baseline) / median(own)
    if max(own) < min(baseline):
        return ratio, "faster"
    if min(own) > max(baseline):
        return ratio, "slower"
    return ratio, "overlap"


# --- 22.2
def wrong_requests(next_token, requests, answers):
    wrong = []
    for i, (prompt, max_tokens) in enumerate(requests):
        text = list(prompt)
        for _ in range(max_tokens):
            text.append(next_token(text))
        if list(answers[i]) != text[len(prompt) :]:
            wrong.append(i)
    return wrong


# --- 22.3
import statistics


def choose(first, second):
    name = min(first, key=lambda name: statistics.median(first[name]))
    return name, statistics.median(second["baseline"]) / statistics.median(second[name])


# --- 22.4
my_entry = """
from course.contest import Settings
from roseinfer.models.weights import prepared_copy


class Three(Settings):
    settings = {"scheduling_policy": "longest_output", "enforce_eager": False}

    def prepare(self, model):
        return prepared_copy(model)
"""
