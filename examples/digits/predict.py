"""Load a community model into the app's network and let it read digits.

python examples/digits/predict.py PATH/model.safetensors
"""

import sys

import torch
from app import build
from safetensors.torch import load_file

from hansa.data import load_source


def main(path: str) -> None:
    """Print the accuracy on the test images, then one image and what the model reads."""
    network = build()
    network.load_state_dict(load_file(path))
    test = load_source("digits", seed=1990).test  # with the job's seed: images that no site trained on
    with torch.no_grad():
        guesses = network(torch.from_numpy(test.x)).argmax(dim=1).numpy()
    right = int((guesses == test.y).sum())
    print(f"{right} of {len(test)} test images are read correctly: accuracy {right / len(test):.1%}\n")
    for row in test.x[0].reshape(8, 8):
        print("".join(" .:-=+*#%@"[round(9 * float(value))] * 2 for value in row))
    print(f"\nThe model says {guesses[0]}; the label is {test.y[0]}.")


if __name__ == "__main__":
    main(*sys.argv[1:])
