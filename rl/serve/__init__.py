"""A server of the OpenAI protocol for a base model and its adapters: python -m rl.serve (see __main__.py).

protocol.py reads requests, sampler.py samples the replies of all of them together, text.py makes text of sampled ids,
replies.py sends it.
"""
