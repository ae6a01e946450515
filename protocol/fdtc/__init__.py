"""FDTC, the protocol between coordinator and workers."""
