"""Text from language models: prompts in, text out, with the KV cache and the choice of tokens on the GPU."""
