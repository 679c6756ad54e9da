"""chat_prompt: a question as the token ids that a chat model answers."""

from __future__ import annotations

from tokenizers import Tokenizer

from roseinfer.llm.chat import ChatTemplate


def chat_prompt(spec: str, tokenizer: Tokenizer, question: str) -> list[int]:
    """Write a question in the chat template of the model `spec`, and encode it: the ids after which it answers.

    Raises ValueError for a model without a chat template.
    """
    template = ChatTemplate.of(spec)
    try:
        text = template.render([{"role": "user", "content": question}])
    finally:
        template.close()
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids
