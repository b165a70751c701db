"""What cases_programs.py stores in a redis and reads back: known.py set get prints the lines for redis-cli, in a guest."""
import random
import sys

NUMBER = 200


def values():
    """Always the same, of a few bytes to an eighth of a ring."""
    dice = random.Random(4)
    return [dice.randbytes(dice.randint(1, 4000)).hex() for _ in range(NUMBER)]


if __name__ == "__main__":
    for word in sys.argv[1:]:
        for number, value in enumerate(values()):
            print(word, f"known:{number}", *([value] if word == "set" else []))
