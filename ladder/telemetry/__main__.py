"""The sampler as a program: ``python -m ladder.telemetry --device cuda`` prints its samples until it is killed."""

from ladder.telemetry.sampler import main

if __name__ == "__main__":
    main()
