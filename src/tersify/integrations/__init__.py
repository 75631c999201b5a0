"""One line for training loops of others: `hf` (the Trainer), `lightning` and
`accelerate`, each with its library.
"""
