# SPDX-License-Identifier: Apache-2.0
"""GPUs and what connects them: the reports of validation, baselines, and other tools' outputs, read and shown."""
