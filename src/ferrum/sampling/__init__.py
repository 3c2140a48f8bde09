"""From logits to tokens: `sampler.sample`, `accept.accept`, `logprobs.score`; `rules` says what happens in between."""
