from __future__ import annotations
def render(*a): pass
def models(*a): pass
def containers(*a): return []
