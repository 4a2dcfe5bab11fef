"""Sends the requests, listens to the answers, and watches itself meanwhile."""
