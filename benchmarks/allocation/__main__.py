"""Print the tables of some or all parts."""

import sys

from benchmarks.allocation import dpack, privatekube, speed

PARTS = {"privatekube": privatekube.main, "dpack": dpack.main, "speed": speed.main}

if __name__ == "__main__":
    chosen = [each for each in sys.argv[1:] if each != "--full"] or list(PARTS)
    for name in chosen:
        print(f"## {name}\n")
        PARTS[name](full="--full" in sys.argv)
