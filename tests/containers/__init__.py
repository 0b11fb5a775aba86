"""Run the containers of docker-compose.yml on a real engine, and disturb them: `python -m containers`."""
