"""The same topology on several engines, over the same records: are the tables equal?"""
