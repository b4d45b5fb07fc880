"""``python -m gdf_market`` is the same as the ``gdf-market`` script."""

from gdf_market.commands import main

if __name__ == "__main__":
    main()
