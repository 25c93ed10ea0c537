"""The audit: is every offset in the files once, and if not, why not?"""
