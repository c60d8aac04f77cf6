"""What merge.py writes: the certificate, the model card, an adapter alone, a push to the hub."""
