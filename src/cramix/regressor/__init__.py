"""The scikit-learn regressor."""
