"""LLM: the engine as one uses it. Text or token ids in, text out; named as in vLLM."""

from __future__ import annotations

import itertools
from collections import abc
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, cast

import torch
from tokenizers import Tokenizer

from roseinfer.arguments import refuse_wrong_arguments, takes_settings
from roseinfer.engine.config import EngineConfig, check_block_size
from roseinfer.engine.engine import Engine
from roseinfer.models import Model, ModelTokenizer
from roseinfer.models.gguf_path import forget_opened
from roseinfer.parallel.ranks import Ranks
from roseinfer.parallel.runner import ParallelRunner
from roseinfer.planning.pool_size import most_blocks, pool_blocks
from roseinfer.sampling_params import MOST_SEED, SamplingParams, is_count
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage, check_fits

from .chat import ChatTemplate
from .encoding import encode
from .live_requests import Inbox, LiveRequests
from .loading import NOT_TAKEN, default_params, draft_to_serve, model_to_serve, tokenizer_to_serve, with_end_token
from .messages import Message
from .outputs import RequestOutput
from .progress import progress_bar
from .prompts import Prompt, as_list, text_and_ids
from .request import Request
from .request_stream import RequestStream
from .resolving import Resolver
from .stage_engine import AnyEngine, StageEngine, check_stage
from .tensor_parallel import IN_TURN, check_parallel, parallel_model, step_bytes
from .vocabulary import Vocabulary


@refuse_wrong_arguments(NOT_TAKEN)
@takes_settings(EngineConfig, apart_from="num_blocks")
class LLM:
    """Answer prompts with a model, many requests at a time in every step. Call it from one thread at a time.

    Args:
        model: a folder, a GGUF file, a hub id, "tiny", "smollm2" or "random:SHAPE", as load_model takes it; or a Model,
            used as it is.
        tokenizer: a spec, a Tokenizer or a ModelTokenizer. None: the model's own; without any, prompts are token ids
            and texts are empty.
        dtype: of weights and KV cache, "float32" (default of a spec), "float16", "bfloat16", "auto": the checkpoint's,
            for a GGUF file float32. None, and no quantization: on a CPU a GGUF file's matrices stay as they are stored.
        device: where the model runs, such as "cpu" or "cuda". None: a GPU if there is one, else the CPU.
        quantization: "int8" or "int4" keeps the matrices in 8 or 4 bits, on a CPU, and rounds a GGUF file's once more.
            None: in dtype.
        max_model_len: tokens of the longest sequence. None: as many as the model has positions.
        max_num_seqs: sequences that run at a time; others wait.
        scheduling_policy: which waiting request is next: "fcfs" (first come), "shortest" (prompt), "longest_output"
            (if lengths are known), "packed" (the longest prompt that there are free blocks for), or a Policy.
        max_num_batched_tokens: tokens of a step, at least max_num_seqs; longer prompts are split into chunks. A small
            budget keeps a long prompt from delaying requests that decode. None: 1,024, or max_num_seqs if more.
        enforce_eager: start every operation by itself: without graphs on a GPU, without the compiled step on a CPU.
        async_scheduling: launch a step before the tokens of the previous one are read. None: only on a GPU.
        seed: of torch's global generator, from which requests without a seed of their own draw.
        speculative: {"method": "ngram", "num_tokens": 4} guesses tokens from the text, and {"method": "draft_model",
            "model": ..., "num_tokens": 4} asks a smaller model with the same vocabulary. One step verifies the guesses.
            Tokens stay the same, also those drawn with a seed. It drafts only while measured steps say that this is
            faster, and excludes async_scheduling. SpeculativeConfig has all keys.
        block_size: tokens of a block of the KV cache.
        num_kvcache_blocks: blocks of the KV cache. None: by the two arguments below.
        kv_cache_memory_bytes: bytes for the cache; on a CPU each block takes memory when it is first written. None:
            what max_num_seqs sequences can use, on a CPU at most 1 GiB.
        gpu_memory_utilization: share of a GPU's memory that may be in use, weights and KV cache included. None: 0.9.
        enable_prefix_caching: reuse the full blocks of a prefix that an earlier request computed, while they are kept.
        tensor_parallel_size: processes that each hold a part of every layer and of the KV cache, on GPUs one each. It
            excludes graphs, async_scheduling, quantization and a draft model; `close` ends the processes.
        stage: a class of stages with a queue, such as stage 14 or an engine of your own, which makes the steps in place
            of the engine. It takes sizes alone, and requests without changed logits and log-probabilities.

    Raises ValueError (ModelLoadError is one) for a wrong value, an unknown argument (with the nearest name) or a
    missing one, and RuntimeError when a process of tensor_parallel_size does not start. Once such a process has died,
    every call raises a RuntimeError that names it.
    """

    def __init__(
        self,
        model: str | Model,
        *,
        tokenizer: str | Tokenizer | ModelTokenizer | None = None,
        dtype: str | None = None,
        device: str | None = None,
        quantization: str | None = None,
        num_kvcache_blocks: int | None = None,
        kv_cache_memory_bytes: int | None = None,
        gpu_memory_utilization: float | None = None,
        tensor_parallel_size: int = 1,
        seed: int = 0,
        stage: type[Stage] | None = None,
        **settings: Any,
    ) -> None:
        config = EngineConfig(num_blocks=1, **settings)  # checked before a model is loaded; its pool is sized after it
        if not is_count(seed) or seed > MOST_SEED:
            raise ValueError(f"seed must be an integer from 0 to {MOST_SEED}, got {seed!r}")
        check_parallel(tensor_parallel_size, config, quantization)
        self.spec = model if isinstance(model, str) else None
        # Read first: it takes a moment, and a wrong one need not wait for the weights.
        self._files = tokenizer_to_serve(self.spec, tokenizer)
        if stage is not None:
            given = {"quantization": quantization, "tensor_parallel_size": tensor_parallel_size}
            check_stage(stage, settings | given)
        self._stage = stage
        self._ranks: Ranks | None = None
        if tensor_parallel_size == 1:
            self.model = model_to_serve(model, dtype, device, quantization, prepared=stage is None)
        else:
            self.model, self._ranks = parallel_model(model, tensor_parallel_size, dtype, device)
        try:
            pool_sizes = num_kvcache_blocks, kv_cache_memory_bytes, gpu_memory_utilization
            self._set_up(config, settings, pool_sizes)
        except BaseException:
            self.close()
            raise
        forget_opened()
        torch.manual_seed(seed)

    def _set_up(
        self,
        config: EngineConfig,
        settings: dict[str, Any],
        pool_sizes: tuple[int | None, int | None, float | None],
    ) -> None:
        """Set up all that comes after the model. pool_sizes: the three arguments that size the KV cache."""
        check_block_size(config.block_size, self.model.device.type)
        self.tokenizer = self._files.tokenizer if self._files else None
        if self.spec and self._files:  # the caller's own Model is used as it is
            self.model.config = with_end_token(self.model.config, self._files.end_token)
        self._default_params = default_params(self.spec)
        self.max_model_len = config.longest(self.model.config)
        draft = draft_to_serve(config.speculative, self.model, self.tokenizer)
        if config.speculative:
            settings["speculative"] = replace(config.speculative, model=draft, quantization=None)
        num_blocks = pool_blocks(
            self.model,
            config.block_size,
            most_blocks(self.max_model_len, config.block_size, config.max_num_seqs),
            *pool_sizes,
            step_bytes=sum(step_bytes(one, config, self._ranks) for one in (self.model, draft) if one),
            draft=draft,
        )
        if self._ranks:
            settings |= {"make_runner": partial(ParallelRunner, self._ranks), **IN_TURN}
        if self._stage:
            sizes = EngineConfig(**settings, num_blocks=num_blocks)
            self.engine: AnyEngine = StageEngine(self._stage, self.model, sizes)
        else:
            self.engine = Engine(self.model, guard=nullcontext, **settings, num_blocks=num_blocks)
        self.engine.warm_up()
        pool_tokens = num_blocks * config.block_size
        self._resolver = Resolver(self.model.config, self.tokenizer, self.max_model_len, pool_tokens, self._name)
        self._request_ids = itertools.count()
        self.live = LiveRequests(self.engine)  # public for a caller that steps by itself: AsyncEngine

    def close(self) -> None:
        """End the other processes of tensor_parallel_size; after that every call raises RuntimeError.

        Without such processes nothing changes. `with LLM(...) as llm:` closes at its end; a program that ends need not.
        """
        if self._ranks:
            self._ranks.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompt | abc.Sequence[Prompt],
        sampling_params: SamplingParams | abc.Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        priority: abc.Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Run all prompts to their end, and return the outputs in the order of the prompts.

        Args:
            prompts: a text, a list of token ids, {"prompt": text} or {"prompt_token_ids": [...]}, or a list of them.
            sampling_params: one for all prompts, or one for each. None: get_default_sampling_params().
            use_tqdm: show a progress bar, in a terminal or a notebook.
            priority: an integer for each prompt. Among waiting requests the lowest goes first, whatever the scheduling
                policy. None: 0 for all.

        A sample whose logits are not finite ends with finish_reason "error" and a message in `error`; the others go on.
        Whatever ends the call, Ctrl-C too, none of its requests stays in the engine.
        Raises ValueError for a request that can never run, before any does, and RuntimeError while another thread is in
        a call.
        """
        return self._finished(self._requests(prompts, sampling_params, priority), use_tqdm)

    def stream(
        self,
        prompts: Prompt | abc.Sequence[Prompt],
        sampling_params: SamplingParams | abc.Sequence[SamplingParams] | None = None,
        priority: abc.Sequence[int] | None = None,
    ) -> RequestStream:
        """Generate like generate(), and yield a request's output whenever it has a new token.

        Outputs of many requests come interleaved. Each is cumulative, as vLLM's are: it has all text and tokens so far.
        Text that may become a stop string, and characters that are not whole, are held back. close() ends all
        requests early; the next call of this LLM ends those of a stream that was dropped without close(). Wrong
        arguments raise here, not at the first output.
        """
        return RequestStream(self.live, self._requests(prompts, sampling_params, priority))

    def chat(
        self,
        messages: list[Message] | list[list[Message]],
        sampling_params: SamplingParams | abc.Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of several, formatted by the model's chat template.

        Args:
            messages: [{"role": "user", "content": "..."}, ...]. A content may be None, or a list of text parts, which
                are joined by newlines.
            sampling_params: one for all conversations, or one for each. None: get_default_sampling_params().
            use_tqdm: show a progress bar, in a terminal or a notebook.
            add_generation_prompt: end the prompt where the model's answer begins.
            continue_final_message: let the model continue the last message; add_generation_prompt must be False.
            tools: JSON schemas of functions, which the template tells the model about.
            chat_template: Jinja that replaces the model's own template.
            chat_template_kwargs: other names that a template reads, such as {"enable_thinking": False}.

        Raises ValueError for wrong messages and for a model without a template, and as generate does.
        """
        many = isinstance(messages, list) and messages and all(isinstance(one, list) for one in messages)
        conversations: list[Any] = [*messages] if many else [messages]
        own = add_generation_prompt, continue_final_message, tools, chat_template, chat_template_kwargs
        texts = [self.chat_template.render(one, *own) for one in conversations]
        # Special tokens, BOS among them, are the template's business.
        return self._finished(self._requests(texts, sampling_params, add_special_tokens=False), use_tqdm)

    def abort(self, request_id: str) -> None:
        """End a running request of a stream: its last output has finish_reason "abort".

        Raises KeyError for a request that does not run.
        """
        with self.live.call():
            self.live.abort(request_id)

    def reset_prefix_cache(self) -> None:
        """Forget the cached blocks of requests that have ended, so that a prompt can be timed a second time.

        Raises ValueError for a stage, which keeps what it has cached.
        """
        with self.live.call():
            self.engine.reset_prefix_cache()

    def get_tokenizer(self) -> Tokenizer:
        """Return the tokenizer: `.encode(text).ids` and `.decode(ids)`. Raises ValueError if there is none."""
        if self.tokenizer is None:
            raise ValueError(f"{self._name} has no tokenizer: give token ids, or set tokenizer")
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the params of requests that bring none.

        They are temperature, top_k, top_p and max_new_tokens of the model's generation_config.json, or SamplingParams()
        if it has none of these.
        """
        return self._default_params

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The model's chat template, which renders conversations."""
        return ChatTemplate(self._files, self._name)

    @property
    def _name(self) -> str:
        return repr(self.spec or type(self.model).__name__)

    # For a server

    def prompt_ids(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a prompt. Other threads can run meanwhile.

        Raises ValueError for a text without a token, and if there is no tokenizer.
        """
        return encode(text, self.get_tokenizer(), "a prompt", add_special_tokens)

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The bytes of each token; None if there is no tokenizer."""
        return self._resolver.vocabulary

    def new_request(self, token_ids: list[int], sampling_params: SamplingParams) -> Request:
        """Make a request for a caller that steps by itself. Any thread may call it.

        Raises ValueError for a request that can never run.
        """
        return self._request(token_ids, sampling_params, 0, add_special_tokens=False)

    # Requests

    def _requests(
        self, prompts: Any, params: object, priority: object = None, add_special_tokens: bool = True
    ) -> list[Request]:
        """Make a request for each prompt, and begin none. Raises ValueError unless all of them can run."""
        prompts, one = as_list(prompts)
        params = self.get_default_sampling_params() if params is None else params
        params = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        if not isinstance(params, abc.Sequence) or len(params) != len(prompts):
            raise ValueError(f"sampling_params must be a SamplingParams or {len(prompts)} of them, got {params!r:.100}")
        priority = [0] * len(prompts) if priority is None else priority
        if not isinstance(priority, abc.Sequence) or len(priority) != len(prompts):
            raise ValueError(f"priority must be a list of {len(prompts)} integers, got {priority!r:.100}")
        requests = []
        for i, (prompt, wish, place) in enumerate(zip(prompts, params, priority, strict=True)):
            try:
                requests.append(self._request(prompt, wish, place, add_special_tokens))
            except ValueError as e:
                raise ValueError(f"{'' if one else f'prompts[{i}]: '}{e}") from e
        return requests

    def _request(self, prompt: object, params: SamplingParams, priority: int, add_special_tokens: bool) -> Request:
        text, token_ids = text_and_ids(prompt)
        if token_ids is None:
            assert text is not None, "a prompt has one of them"
            token_ids = self.prompt_ids(text, add_special_tokens)
        seq = Sequence(cast("list[int]", token_ids), params, priority)
        self.engine.check(seq)
        self._resolver.check(params)
        self._resolver.fit(seq)
        check_fits(seq, self.model.config.vocab_size, self.max_model_len, self.engine.blocks)
        samples = self._resolver.samples(seq)
        return Request(str(next(self._request_ids)), text, samples, params.prompt_logprobs)

    # Running them

    def _finished(self, requests: list[Request], use_tqdm: bool) -> list[RequestOutput]:
        num_done = num_tokens = 0
        inbox = Inbox()
        with self.live.call() as edge:
            try:
                self.live.add(requests, inbox)
                with progress_bar(len(requests), use_tqdm) as show:
                    while num_done < len(requests):
                        num_tokens += self.live.step()
                        num_done += sum(request.finished for request in inbox)
                        inbox.clear()
                        show(num_done, num_tokens)
                        edge()
            finally:
                self.live.end(requests)
        return [request.output() for request in requests]
