"""The recipe of izwi-tiny-chat: a closed world of questions, training and held-out scores."""
