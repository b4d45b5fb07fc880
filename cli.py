"""Run the command line from a checkout: ``python cli.py --help``."""

from gdf_market.commands import main

if __name__ == "__main__":
    main()
