"""`Reranker`: how a causal language model scores a document for a query, read from the model's files.

The score is the log-odds of two tokens after a prompt with both texts, or the probability of the first one. Files name
it as `sentence-transformers` does (a module `LogitScore`), or as vLLM does (`classifier_from_token`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.model_files import ModelFiles, read_json_object
from ferrum.text.pooling import module_file
from ferrum.text.tokenizer import Tokenizer

WEB_SEARCH: Final = "Given a web search query, retrieve relevant passages that answer the query"
"""The instruction of Qwen3-Reranker's model card."""

_QWEN3: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: {instruction}\n\n<Query>: {query}\n\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""The prompt of Qwen3-Reranker's model card."""

_ACTIVATIONS: Final = {"Sigmoid": True, "Identity": False}
_NOT_VARIABLES: Final = ("restore_suffix", "padding", "truncation", "max_length", "return_tensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranker:
    """The prompt and the tokens of a model's scores.

    Attributes:
        true_token, false_token: token ids whose log-odds are the score.
        probability: the score is the probability of the true token among both, else the log-odds.
        instruction: what makes a document relevant, by default; empty: none.
        variables: of the chat template, which gets messages of the roles `query` and `document`.
        form: a text with places for `instruction`, `query` and `document` that replaces the chat template; or None.
    """

    true_token: int
    false_token: int
    probability: bool = True
    instruction: str = ""
    variables: Mapping[str, Any] = field(default_factory=dict)
    form: str | None = None

    def prompt(self, template: ChatTemplate | None, query: str, document: str, instruction: str | None) -> str:
        """Return the text after which the model answers with one of the tokens.

        Raises:
            RequestError, CheckpointError: the template cannot render it.
            Unsupported: the model has no chat template.
        """
        chosen = self.instruction if instruction is None else instruction
        if self.form is not None:
            places = {"instruction": chosen, "query": query, "document": document}
            pieces = _split(self.form)
            return "".join(places[each] if place % 2 else each for place, each in enumerate(pieces))
        if template is None:
            raise Unsupported("reranker", "the model has no chat template; set --chat-template")
        system = [{"role": "system", "content": chosen}] if chosen else []
        variables = dict(self.variables)
        begins = bool(variables.pop("add_generation_prompt", False))
        pair = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        return template.render([*system, *pair], add_generation_prompt=begins, template_kwargs=variables or None)

    def score(self, true_logprob: float, false_logprob: float) -> float:
        """Return the score from the log-probabilities of both tokens."""
        odds = true_logprob - false_logprob
        if not self.probability:
            return odds
        return 1.0 / (1.0 + math.exp(-odds)) if odds >= 0 else math.exp(odds) / (1.0 + math.exp(odds))


def _split(form: str) -> list[str]:
    """Return the texts of a form, with the names of its places in between: texts of clients may have braces."""
    pieces = form.split("{")
    return [pieces[0], *(part for piece in pieces[1:] for part in piece.split("}", 1))]


def qwen3_reranker(tokenizer: Tokenizer | None) -> Reranker:
    """Return how Qwen3-Reranker scores, by its model card. Raises Unsupported if the tokens are not in the model."""
    true, false = (_only_token(tokenizer, text) for text in ("yes", "no"))
    return Reranker(true_token=true, false_token=false, instruction=WEB_SEARCH, form=_QWEN3)


def load_reranker(files: ModelFiles, tokenizer: Tokenizer | None) -> Reranker | None:
    """Return how a model scores documents; None if its files do not say that it does.

    Raises:
        CheckpointError: a file is damaged or missing.
        Unsupported: the model scores in another way.
    """
    name = module_file(files, "LogitScore")
    if name is not None:
        return _logit_score(files, name)
    config = read_json_object(files, "config.json") or {}
    labels = config.get("classifier_from_token")
    if labels is None:
        return None
    if not isinstance(labels, list) or len(labels) != 2 or not all(isinstance(each, str) for each in labels):
        raise Unsupported("classifier_from_token", f"two tokens are supported, not {labels!r}")
    false, true = (_only_token(tokenizer, each) for each in labels)
    if config.get("is_original_qwen3_reranker"):
        return Reranker(true_token=true, false_token=false, instruction=WEB_SEARCH, form=_QWEN3)
    return Reranker(true_token=true, false_token=false)


def _logit_score(files: ModelFiles, name: str) -> Reranker:
    """Return the scores of a `CrossEncoder` whose module `LogitScore` has its configuration in file `name`."""
    config = read_json_object(files, name)
    if config is None:
        raise CheckpointError(f"{files.where(name)}: does not exist, but modules.json names it")
    true, false = config.get("true_token_id"), config.get("false_token_id")
    if type(true) is not int or type(false) not in (int, type(None)):
        raise CheckpointError(f"{files.where(name)}: true_token_id and false_token_id must be token ids")
    if false is None:
        raise Unsupported(f"{name}: false_token_id", "scores by the logit of one token are not supported")
    prompts = read_json_object(files, "config_sentence_transformers.json") or {}
    named = prompts.get("prompts") or {}
    instruction = named.get(prompts.get("default_prompt_name")) if isinstance(named, dict) else None
    transformer = read_json_object(files, "sentence_bert_config.json") or {}
    given = (transformer.get("processing_kwargs") or {}).get("chat_template") or {}
    return Reranker(
        true_token=true,
        false_token=false,
        probability=_is_probability(files, prompts),
        instruction=instruction if isinstance(instruction, str) else "",
        variables={key: value for key, value in given.items() if key not in _NOT_VARIABLES},
    )


def _is_probability(files: ModelFiles, prompts: Mapping[str, Any]) -> bool:
    """Return whether the saved activation is a sigmoid, the default. Raises Unsupported for another one."""
    config = read_json_object(files, "config.json") or {}
    saved = (config.get("sentence_transformers") or {}).get("activation_fn") or prompts.get("activation_fn")
    name = str(saved or "Sigmoid").rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise Unsupported("activation_fn", f"scores by {saved!r} are not supported")
    return _ACTIVATIONS[name]


def _only_token(tokenizer: Tokenizer | None, text: str) -> int:
    """Return the token that alone spells a text. Raises Unsupported."""
    ids = [] if tokenizer is None else tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1:
        raise Unsupported("reranker", f"{text!r} must be one token of the model's tokenizer, not {len(ids)}")
    return ids[0]
