"""Ops of serving engines and training libraries: vLLM, SGLang, AITER, TransformerEngine; shapes as traces hold them."""
