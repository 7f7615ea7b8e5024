"""Encodings of updates: fewer bytes on the wire than the numbers themselves (methods: transfer).

contract                what an encoding is; third-party packages may bring their own
float16, int8, topk     Hansa's own
model                   the tensors of an update as they are sent
testing                 what every encoding must do, as checks

Importing the package registers all of Hansa's.
"""

from hansa.common.encodings import float16, int8, topk
from hansa.common.encodings.contract import encoding_of

__all__ = ["encoding_of", "float16", "int8", "topk"]
