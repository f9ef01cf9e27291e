"""Signatures of documents."""
