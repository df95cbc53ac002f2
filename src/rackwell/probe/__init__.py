# SPDX-License-Identifier: Apache-2.0
"""The probe: proves on a machine that its GPUs compute, copy between each other and can be measured.

It is installed alone on the hosts: it imports nothing else of rackwell and needs ``cuda-bindings`` and
``nvidia-ml-py`` only. Commands: ``python -m rackwell.probe check | baseline | gate | require | codes | record``.
"""
