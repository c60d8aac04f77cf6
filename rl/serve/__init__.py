"""A server of the OpenAI protocol for a base model and its adapters: python -m rl.serve (see __main__.py).

sampler.py samples the replies of all requests together, text.py makes text of sampled ids, protocol.py reads requests
and writes replies.
"""
