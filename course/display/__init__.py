"""Pictures that lessons draw: cells that move, computed pictures, bars beside a floor."""
