"""Generation loops of transformers decoders, and the job of ``rooflight profile-decode`` that runs them."""
