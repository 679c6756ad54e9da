"""Pictures that lessons draw: cells that move, computed pictures, and bars beside a floor."""
