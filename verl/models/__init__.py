"""Transformers models as the engines see them: loading, policies, critics and reward models."""
