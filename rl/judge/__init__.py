"""The results of eval.py: settings that an adapter was trained with, tables, paired comparisons."""
