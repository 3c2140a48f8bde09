"""The named verbs of an executor, its inputs, outputs, handles and reports, and models written by hand."""
